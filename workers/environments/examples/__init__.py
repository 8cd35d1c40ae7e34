"""Environments to start from: copy one, change it, and check it with `headrace environments check FILE.py:Class`.

lookup.py         a tool of your own, with its JSON schema
model_judge.py    a reward that another model gives, over HTTP
"""
