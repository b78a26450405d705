from tests.api.test_tickets import *  # noqa: F403
