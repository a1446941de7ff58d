"""Graphs on the CPU: a recorder of operations and a program that replays them."""
