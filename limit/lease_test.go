package limit

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLeasePermitsAreTheWasteShareOfTheCapacity(t *testing.T) {
	for want, spec := range map[int64]Spec{
		0:         {Requests: 199, Unit: Minute, Lease: true},
		10:        {Requests: 1000, Unit: Minute, Lease: true},
		29:        {Requests: 100, Unit: Minute, Lease: true, LeaseWaste: 0.29},
		500:       {Algorithm: TokenBucket, Requests: 10, Burst: 5000, Unit: Second, Lease: true, LeaseWaste: 0.1},
		1<<31 - 1: {Requests: 1<<32 - 1, Unit: Second, Lease: true, LeaseWaste: 0.5},
	} {
		l := must(t, spec)
		assert.Equal(t, want, l.LeasePermits())
		if want > 0 {
			assert.Equal(t, want, l.LeaseBudget().Max())
			assert.Equal(t, l.Period(), l.LeaseBudget().Period())
		}
	}
	assert.Zero(t, must(t, Spec{Requests: 1000, Unit: Minute}).LeasePermits(), "no lease")
}
