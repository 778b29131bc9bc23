package redis_test

import "time"

// ample is a timeout for tests of something else, on a machine with much to do.
const ample = 10 * time.Second
