"""Whatever a device sends, the server lives on, the others are unharmed and the work is done."""
