from tensorplay_core.testing import profiles

# Before any test module decorates a test with `@given`, which is when settings are read.
profiles.load()
