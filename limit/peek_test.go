package limit

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPeekAnswersForHitsThatAreNotCharged(t *testing.T) {
	l := mustNew(t, Spec{Requests: 10, Unit: Minute})
	for name, c := range map[string]struct {
		peek           Result
		n              int64
		isAllowed      bool
		wantRetryAfter int64
	}{
		"fewer hits than remain":                       {Result{Remaining: 4, ResetAfter: 7}, 3, true, 0},
		"as many hits as remain":                       {Result{Remaining: 4, ResetAfter: 7}, 4, true, 0},
		"more hits than remain":                        {Result{Remaining: 4, ResetAfter: 7}, 5, false, 7},
		"as many hits as the capacity":                 {Result{Remaining: 4, ResetAfter: 7}, 10, false, 7},
		"more hits than the capacity":                  {Result{Remaining: 4, ResetAfter: 7}, 11, false, Never},
		"the renewal of a hold":                        {Result{Remaining: 0, ResetAfter: 7, HoldExists: true}, 1, true, 0},
		"a peek with a wait that the hits do not have": {Result{Remaining: 4, ResetAfter: 7, RetryAfter: 3}, 4, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			want := c.peek
			want.Allowed, want.RetryAfter = c.isAllowed, c.wantRetryAfter
			assert.Equal(t, want, l.ResultFromPeek(c.peek, c.n))
		})
	}
}
