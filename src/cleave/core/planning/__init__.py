"""Planning: what work costs on devices, and how it is cut between them."""
