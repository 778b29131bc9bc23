package service

import (
	"context"
	"encoding/json"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// These constants are names in the metadata of gRPC. If a client sends AskSwitchesKey, the trailer SwitchesTrailerKey of the
// answer has the Switches of the request as JSON. Envoy does not send AskSwitchesKey.
const (
	AskSwitchesKey     = "rls-ask-switches"
	SwitchesTrailerKey = "rls-switches-bin"
)

// Switch is a switch at run time that has turned off the limits of a descriptor.
type Switch struct {
	// Descriptor is the index of the descriptor in the request.
	Descriptor int `json:"descriptor"`

	// Path is the path of the rule or of the domain that is switched off, or "all domains".
	Path string `json:"path"`

	Author  string    `json:"by,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Expires time.Time `json:"expires_at,omitzero"` // zero for a switch without an end
}

// Switch returns the switch that has turned off the limits of descriptor i, or nil.
func (c *Call) Switch(i int) *Switch {
	if !c.hasOffSwitch() || i >= len(c.Rules) || c.Rules[i] != nil {
		return nil
	}
	domain := c.config.Domain(c.Request.GetDomain())
	if domain == nil {
		return nil
	}
	offSwitch := domain.OffSwitchFor(c.Request.Descriptors[i].GetEntries())
	if offSwitch == nil {
		return nil
	}
	return &Switch{Descriptor: i, Path: offSwitch.Path, Author: offSwitch.Author, Reason: offSwitch.Reason, Expires: offSwitch.ExpiresAt}
}

// IsUnmatched reports whether no rule matches descriptor i. It is false if a switch has turned off the limits.
func (c *Call) IsUnmatched(i int) bool { return c.Rules[i] == nil && c.Switch(i) == nil }

func (c *Call) hasOffSwitch() bool { return c.config != nil && c.config.HasOffSwitch }

func (c *Call) sendSwitches(ctx context.Context) {
	if !c.hasOffSwitch() || len(metadata.ValueFromIncomingContext(ctx, AskSwitchesKey)) == 0 {
		return
	}
	var switches []*Switch
	for i := range c.Request.Descriptors {
		if s := c.Switch(i); s != nil {
			switches = append(switches, s)
		}
	}
	if text, err := json.Marshal(switches); err == nil && len(switches) > 0 {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(SwitchesTrailerKey, string(text))) // it fails only without a gRPC call, which has no trailers
	}
}
