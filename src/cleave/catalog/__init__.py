"""What is known before anybody joins: devices, links, models, GPUs, and fleets of them."""
