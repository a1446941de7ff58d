"""The conformance suite: what holds of every driver, one module a noun.

Each test states behaviour of the public contract. It works through a driver's workbench alone and
never looks inside a driver.
"""
