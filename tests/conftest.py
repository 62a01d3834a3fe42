"""What all tests share."""

from hypothesis import settings

settings.register_profile("cleave", deadline=None, max_examples=50, print_blob=True)
settings.load_profile("cleave")
