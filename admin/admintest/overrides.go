// Package admintest has what tests of the admin API and its clients need.
package admintest

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/admin"
	"github.com/seed-81f232ab/rls/descriptors"
)

// Overrides is an admin.Overrides in memory, which puts what it holds in force.
type Overrides struct {
	// Limits are those in force.
	Limits descriptors.Store

	mu   sync.Mutex
	base *descriptors.Config
	all  map[string]string
	kept descriptors.Overrides
	fail error
}

var _ admin.Overrides = (*Overrides)(nil)

// NewOverrides returns one without overrides, over the limits of a file.
func NewOverrides(t require.TestingT, yaml string) *Overrides {
	c, err := descriptors.Compile([]descriptors.File{{Name: "limits.yaml", Data: []byte(yaml)}}, descriptors.Options{})
	require.NoError(t, err)
	o := &Overrides{base: c, all: map[string]string{}}
	o.apply()
	return o
}

// Fail makes Put and Delete fail; nil makes them work again.
func (o *Overrides) Fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fail = err
}

// Store keeps a value as if it came from elsewhere: however bad.
func (o *Overrides) Store(target, value string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all[target] = value
	o.apply()
}

// States implements admin.Overrides.
func (o *Overrides) States() []descriptors.OverrideState {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept.States()
}

// Try implements admin.Overrides.
func (o *Overrides) Try(target, value string) descriptors.OverrideState {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept.Try(o.base, target, value, time.Now())
}

// Put implements admin.Overrides.
func (o *Overrides) Put(_ context.Context, target, value string) (old string, had bool, err error) {
	return o.change(target, func() { o.all[target] = value })
}

// Delete implements admin.Overrides.
func (o *Overrides) Delete(_ context.Context, target string) (old string, had bool, err error) {
	return o.change(target, func() { delete(o.all, target) })
}

func (o *Overrides) change(target string, change func()) (old string, had bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail != nil {
		return "", false, o.fail
	}
	old, had = o.all[target]
	change()
	o.apply()
	return old, had, nil
}

// apply puts the limits with the overrides in force.
func (o *Overrides) apply() {
	o.kept.Set(maps.Clone(o.all))
	c, _ := o.kept.Over(o.base, time.Now())
	o.Limits.Set(c)
}
