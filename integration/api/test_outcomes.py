from tests.api.test_outcomes import *  # noqa: F403
