from hypothesis import settings

settings.register_profile("policies", deadline=None)
settings.load_profile("policies")
