"""What worker processes and commands import and read for light stages, for a process that they are forks of."""

from importlib import import_module

from afarm_plugins.annotators.prompt_library import load_member, shipped

for module in ("warmth", "afarm.experiment.method_comparison", "afarm.report.study_page", "light_worker"):
    import_module(module)
for name in shipped().entries:
    load_member(name)
