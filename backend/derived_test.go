package backend

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/limit"
)

func TestALimitIsDerivedOnce(t *testing.T) {
	derived := 0
	d := NewDerived(func(l *limit.Limit) *limit.Limit {
		derived++
		return &limit.Limit{Spec: limit.Spec{Requests: l.Requests / 2}}
	})
	ten, six := &limit.Limit{Spec: limit.Spec{Requests: 10}}, &limit.Limit{Spec: limit.Spec{Requests: 6}}
	for range 3 {
		assert.Equal(t, uint32(5), d.Of(ten).Requests)
		assert.Equal(t, uint32(3), d.Of(six).Requests)
	}
	assert.Equal(t, 2, derived)
}

func TestLimitsThatRequestsBringAlongAreNotKept(t *testing.T) {
	d := NewDerived(func(l *limit.Limit) *limit.Limit { return l })
	for range 2*maxDerived + 5 {
		d.Of(new(limit.Limit))
	}
	kept := 0
	d.known.Range(func(any, any) bool { kept++; return true })
	assert.LessOrEqual(t, kept, maxDerived)
	assert.Positive(t, kept)
}

func TestManyDeriveAtOnce(t *testing.T) {
	d := NewDerived(func(l *limit.Limit) *limit.Limit { return &limit.Limit{Spec: l.Spec} })
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for n := range uint32(maxDerived) {
				assert.Equal(t, n, d.Of(&limit.Limit{Spec: limit.Spec{Requests: n}}).Requests)
			}
		})
	}
	running.Wait()
}
