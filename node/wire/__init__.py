"""HTTP over unix sockets, for the programs of a node that meet there: engine, comparator, agent."""
