"""`python -m examples.pipeline`"""

import sys

from examples.pipeline.story import main

sys.exit(main())
