"""The two engines behind one interface, and the fence that both commit under."""
