package limitsfile

import (
	"cmp"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// Quota says how Envoys share the limit of a rule.
type Quota struct {
	MinShare float64 // a bucket without demand gets MinShare × limit / buckets
	Headroom float64 // the part of the limit that stays free for new buckets
	TTL      int64   // the time after which a grant expires if rls does not send it again, in microseconds
}

// The defaults and the bounds of a Quota.
const (
	defaultMinShare, defaultHeadroom, maxHeadroom = 0.01, 0.01, 0.5

	defaultQuotaTTL = 15_000_000
	minQuotaTTL     = 11_000_000 // Envoy reports each 5 s, so a grant lives for two reports and one second more
	maxQuotaTTL     = 600_000_000
)

// readQuota reads the field quota of desc: true, or a mapping. If Envoys can't share the limit, it reports the reason.
func (d *document) readQuota(desc *Descriptor, pos *place, v value) {
	o := &object{}
	if v.node.Kind == yaml.MappingNode {
		o = d.readObject(quotaObject, pos, v.node)
	} else if isOn, isBool := fields.ParseBool(v.node.Value); v.node.Kind != yaml.ScalarNode || !isBool {
		d.errorf(v.node, pos, "quota: got %s, want %s", fields.Display(v.node), v.schema.Want)
		return
	} else if !isOn {
		return
	}
	desc.Quota = &Quota{ // the schema allows no field to be 0
		MinShare: cmp.Or(o.field("min_share").Ratio, defaultMinShare), Headroom: cmp.Or(o.field("headroom").Ratio, defaultHeadroom),
		TTL: cmp.Or(o.field("ttl").Number, defaultQuotaTTL),
	}
	if reason := desc.quotaProblem(); reason != "" {
		d.errorf(v.node, pos, "%s", reason)
	}
	if d.options.StoreWithoutHolds != "" {
		d.errorf(v.node, pos, "quota: %s can't keep quotas; remove quota, or count in Redis (BACKEND_TYPE=redis)", d.options.StoreWithoutHolds)
	}
}

// quotaProblem returns why Envoys can't share the limit of d, or "". Envoy has only token buckets for single requests.
func (d *Descriptor) quotaProblem() string {
	if d.Quota == nil || len(d.Limits) == 1 && d.Limits[0].Unlimited {
		return ""
	}
	if len(d.Limits) != 1 {
		return "quota needs exactly one limit in the same descriptor; an example is rate_limit: {unit: minute, requests_per_unit: 100, algorithm: token_bucket}"
	}
	l := d.Limits[0]
	for _, field := range []struct {
		isSet bool
		text  string
	}{
		{l.Algorithm != limit.TokenBucket, "quota needs algorithm: token_bucket, because Envoy has only token buckets; got " + l.Algorithm.String()},
		{l.Scope == limit.Global, "quota has no meaning with scope: global, because a quota is divided in one region; want scope: region"},
		{l.Scope == limit.Instance, "quota has no meaning with scope: instance, because all Envoys share the limit; remove one of them"},
		{len(l.Replaces) > 0, "quota has no meaning with replaces, because a request has one bucket only; remove one of them"},
		{l.Lease, "quota has no meaning with lease, because Envoys hold the shares; remove one of them"},
		{l.ChargeDenied, "quota has no meaning with charge_denied, because Envoy does not charge denied requests; remove one of them"},
		{d.MaxHits > 0, "quota has no meaning with max_hits, because each request costs 1; remove one of them"},
	} {
		if field.isSet {
			return field.text
		}
	}
	return ""
}

// readQuotaOrder reads quota_order: the keys that come first when rls puts the keys of a bucket id in order.
func (d *document) readQuotaOrder(v value) {
	if !v.isValid() {
		return
	}
	if d.domain.QuotaOrder != nil {
		d.errorf(v.node, d.rootPlace, "duplicate quota_order: another file of the domain has one; remove one of them")
		return
	}
	for _, n := range v.node.Content {
		item := fields.Field{Name: "item of quota_order", Kind: fields.NonEmpty}
		key, problem := item.Read(fields.Resolve(n))
		switch {
		case !d.mayReadNode(n):
			return
		case problem != "":
			d.errorf(n, d.rootPlace, "%s: %s", item.Name, problem)
		case slices.Contains(d.domain.QuotaOrder, key.Text):
			d.errorf(n, d.rootPlace, "quota_order has the key %s twice; remove one", fields.Printable(key.Text))
		default:
			d.domain.QuotaOrder = append(d.domain.QuotaOrder, key.Text)
		}
	}
}
