"""The pure heart of Cleave: what work is, how it is cut, who does it. No I/O, clock or torch."""
