"""What all tests share."""

import os

from hypothesis import settings

# CI decides over a change by the same examples each time; people's runs look for new ones.
settings.register_profile("cleave", deadline=None, max_examples=50, print_blob=True)
settings.register_profile("ci", settings.get_profile("cleave"), derandomize=True)
settings.load_profile("ci" if "CI" in os.environ else "cleave")
