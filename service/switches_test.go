package service

import (
	"context"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

func TestCallNamesTheSwitchOfADescriptor(t *testing.T) {
	expiry := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	notes := limitsfile.Notes{Author: "ops", Reason: "incident", ExpiresAt: expiry}
	newStore := func(change func(d *limitsfile.Domain)) *descriptors.Store {
		set, err := limitsfile.Parse([]limitsfile.File{{Name: "f", Data: []byte(`domain: d
descriptors:
- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: b, rate_limit: {unit: day, requests_per_unit: 1}}
`)}}, limitsfile.Options{})
		require.NoError(t, err)
		change(set.Domains[0])
		store := &descriptors.Store{}
		store.Set(descriptors.Compile(set))
		return store
	}
	switchOff := func(d *limitsfile.Domain) {
		d.Descriptors[0].Overrides = []limitsfile.AppliedOverride{{Target: "d|a", Notes: notes, IsSwitch: true}}
		d.Descriptors[0].Limits[0].Enabled = false
	}
	for name, c := range map[string]struct {
		store *descriptors.Store
		want  []*Switch // the switches of a, of b, and of an unknown descriptor
	}{
		"a rule is off":       {newStore(switchOff), []*Switch{{0, "d > a", "ops", "incident", expiry}, nil, nil}},
		"a domain is off":     {newStore(func(d *limitsfile.Domain) { d.OffSwitch = &limitsfile.AppliedOverride{Target: "d", Notes: notes} }), []*Switch{{0, "d", "ops", "incident", expiry}, {1, "d", "ops", "incident", expiry}, {2, "d", "ops", "incident", expiry}}},
		"all domains are off": {newStore(func(d *limitsfile.Domain) { d.OffSwitch = &limitsfile.AppliedOverride{Notes: notes} }), []*Switch{{0, "all domains", "ops", "incident", expiry}, {1, "all domains", "ops", "incident", expiry}, {2, "all domains", "ops", "incident", expiry}}},
		"nothing is off":      {newStore(func(*limitsfile.Domain) {}), []*Switch{nil, nil, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			observer := &switchObserver{}
			wantUnmatched := []bool{false, false, c.want[2] == nil}
			f := newFixture(t, "domain: d", func(o *Options) { o.Limits, o.Observers = c.store, []Observer{observer} })
			f.request(desc("a=1"), desc("b=1"), desc("c=1"))
			assert.Equal(t, c.want, observer.switches)
			assert.Equal(t, wantUnmatched, observer.unmatched, "a switch is no missing rule")
		})
	}
}

// switchObserver keeps the switches of the descriptors.
type switchObserver struct {
	switches  []*Switch
	unmatched []bool
}

func (o *switchObserver) CallAnswered(_ context.Context, c *Call) {
	for i := range c.Request.Descriptors {
		o.switches = append(o.switches, c.Switch(i))
		o.unmatched = append(o.unmatched, c.IsUnmatched(i))
	}
}

// trailerStream records the trailer of an answer.
type trailerStream struct {
	grpc.ServerTransportStream
	trailer metadata.MD
}

func (s *trailerStream) SetTrailer(md metadata.MD) error {
	s.trailer = metadata.Join(s.trailer, md)
	return nil
}

func TestTrailerHasTheSwitchesThatTheCallAsksFor(t *testing.T) {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "f", Data: []byte("domain: d\ndescriptors: [{key: a}, {key: b}]\n")}}, limitsfile.Options{})
	require.NoError(t, err)
	configOn := descriptors.Compile(set)
	set.Domains[0].Descriptors[0].Overrides = []limitsfile.AppliedOverride{{Target: "d|a", IsSwitch: true}}
	configOff := descriptors.Compile(set)
	askMetadata := metadata.Pairs(AskSwitchesKey, "true")
	for name, c := range map[string]struct {
		config      *descriptors.Config
		askMetadata metadata.MD
		entry       string
		want        []string
	}{
		"a switched-off rule":      {configOff, askMetadata, "a=1", []string{`[{"descriptor":0,"path":"d \u003e a"}]`}},
		"another rule":             {configOff, askMetadata, "b=1", nil},
		"nothing is off":           {configOn, askMetadata, "a=1", nil},
		"a call that does not ask": {configOff, nil, "a=1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			store := &descriptors.Store{}
			store.Set(c.config)
			f := newFixture(t, "domain: d", func(o *Options) { o.Limits = store })
			stream := &trailerStream{}
			ctx := grpc.NewContextWithServerTransportStream(metadata.NewIncomingContext(t.Context(), c.askMetadata), stream)
			_, err := f.svc.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{desc(c.entry)}})
			require.NoError(t, err)
			assert.Equal(t, c.want, stream.trailer.Get(SwitchesTrailerKey))
		})
	}
}
