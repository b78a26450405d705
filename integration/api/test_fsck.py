from tests.api.test_fsck import *  # noqa: F403
