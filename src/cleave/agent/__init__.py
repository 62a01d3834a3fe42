"""The agent: the program on a device that lends compute."""
