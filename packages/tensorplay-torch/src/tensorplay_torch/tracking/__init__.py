"""What captured work touches: the operations torch dispatches, their operands, hidden state."""
