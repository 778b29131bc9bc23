// Package admintest has a store of overrides for tests of the admin API and its clients.
package admintest

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/admin"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/descriptors/override"
)

// Overrides is an admin.Overrides in memory.
type Overrides struct {
	// Limits are the limits in force, with the overrides.
	Limits descriptors.Store

	mu   sync.Mutex
	base *limitsfile.Set
	all  map[string]string
	set  override.Layer
	err  error // of Put and Delete
}

var _ admin.Overrides = (*Overrides)(nil)

// NewOverrides returns a store without overrides, for the limits of a file.
func NewOverrides(t require.TestingT, yaml string) *Overrides {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(yaml)}}, limitsfile.Options{})
	require.NoError(t, err)
	o := &Overrides{base: set, all: map[string]string{}}
	o.apply()
	return o
}

// Fail sets the error of Put and Delete; nil ends the failure.
func (o *Overrides) Fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
}

// Store stores a value, valid or not, as another program could.
func (o *Overrides) Store(target, value string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all[target] = value
	o.apply()
}

// States implements admin.Overrides.
func (o *Overrides) States() []override.State {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.set.States()
}

// DryRun implements admin.Overrides.
func (o *Overrides) DryRun(target, value string) override.State {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.set.DryRun(o.base, target, value, time.Now())
}

// Put implements admin.Overrides.
func (o *Overrides) Put(_ context.Context, target, value string) (old string, existed bool, err error) {
	return o.change(target, func() { o.all[target] = value })
}

// Delete implements admin.Overrides.
func (o *Overrides) Delete(_ context.Context, target string) (old string, existed bool, err error) {
	return o.change(target, func() { delete(o.all, target) })
}

func (o *Overrides) change(target string, change func()) (old string, existed bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return "", false, o.err
	}
	old, existed = o.all[target]
	change()
	o.apply()
	return old, existed, nil
}

// apply puts the limits with the overrides in force.
func (o *Overrides) apply() {
	o.set.Set(maps.Clone(o.all))
	set, _ := o.set.Apply(o.base, time.Now())
	o.Limits.Set(descriptors.Compile(set))
}
