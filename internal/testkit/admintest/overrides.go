// Package admintest has a store of overrides for tests of the admin API and its clients.
package admintest

import (
	"context"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

// Overrides is an admin.Overrides in memory.
type Overrides struct {
	// Limits are the limits in force, with the overrides.
	Limits descriptors.Store

	mu     sync.Mutex
	base   *limitsfile.Set
	memory changes.Memory
	table  override.Table
	err    error // the error that Outage, MakeChange, History and Replicas return
}

var _ admin.Overrides = (*Overrides)(nil)

// NewOverrides returns a store without overrides, for the limits of a file.
func NewOverrides(t require.TestingT, yaml string) *Overrides {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(yaml)}}, limitsfile.Options{})
	require.NoError(t, err)
	o := &Overrides{base: set}
	o.apply()
	return o
}

// Fail sets the error of Outage, MakeChange, History and Replicas; nil ends the failure.
func (o *Overrides) Fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
}

// SetField sets a field without a check and without an entry in the history, as a program does that writes to Redis
// itself.
func (o *Overrides) SetField(field, value string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.memory.Set(field, value)
	o.apply()
}

// States implements admin.Overrides.
func (o *Overrides) States() []override.State {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.table.States()
}

// Outage implements admin.Overrides.
func (o *Overrides) Outage() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// DryRun implements admin.Overrides.
func (o *Overrides) DryRun(field, value string) override.State {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.table.DryRun(o.base, field, value, time.Now())
}

// MakeChange implements admin.Overrides.
func (o *Overrides) MakeChange(ctx context.Context, c changes.Change) (changes.Result, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return changes.Result{}, o.err
	}
	defer o.apply()
	return o.memory.MakeChange(ctx, c)
}

// History implements admin.Overrides.
func (o *Overrides) History(ctx context.Context) ([]changes.Entry, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	history, _ := o.memory.History(ctx)
	return history, o.err
}

// Replicas implements admin.Overrides.
func (o *Overrides) Replicas(context.Context) ([]changes.Replica, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return []changes.Replica{{Name: "test", Version: o.memory.Version(), Limits: o.Limits.Load().Hash()}}, o.err
}

// apply puts the limits with the overrides in force.
func (o *Overrides) apply() {
	o.table.Set(o.memory.Fields())
	set, _ := o.table.Apply(o.base, time.Now())
	o.Limits.Set(descriptors.Compile(set))
}
