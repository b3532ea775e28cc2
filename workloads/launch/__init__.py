"""The launcher: `python -m workloads.launch`, torchrun's manners with exit codes that mean something.

Standard library only and quick to import: a ConfigMap carries it into any image, and it starts in a fraction of the
time that importing a framework takes. docs/launcher.md says what it does, flag by flag.
"""
