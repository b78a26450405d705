from tests.api.test_admin import *  # noqa: F403
