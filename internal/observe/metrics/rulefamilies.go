package metrics

import (
	"bytes"
	"cmp"
	"io"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// samplesPerPiece is the number of series that a scrape encodes at once. To encode all series of many rules
// at once, the process would need several times the memory of the rules.
const samplesPerPiece = 500

// ruleMetric is one metric of all rules.
type ruleMetric struct {
	name, help string
	value      func(*HitSums) uint64
}

// ruleMetrics have the names of envoyproxy/ratelimit.
var ruleMetrics = []ruleMetric{
	{"total_hits", "Hits on the rule.", func(s *HitSums) uint64 { return s.Total }},
	{"within_limit", "Hits that passed.", func(s *HitSums) uint64 { return s.WithinLimit }},
	{"near_limit", "Hits between NEAR_LIMIT_RATIO × the limit and the limit.", func(s *HitSums) uint64 { return s.NearLimit }},
	{"over_limit", "Hits beyond the limit, also in shadow mode.", func(s *HitSums) uint64 { return s.OverLimit }},
	{"over_limit_with_local_cache", "Hits beyond the limit that the deny cache denied without Redis.", func(s *HitSums) uint64 { return s.OverLocal }},
	{"shadow_mode", "Hits beyond the limit that passed because the rule is in shadow mode.", func(s *HitSums) uint64 { return s.Shadow }},
}

// ruleSample has the counts of one set of labels.
type ruleSample struct {
	labels ruleLabels
	HitSums
}

// families returns the metrics of rules that isWanted accepts. All have the counts of the same moment.
func (r *rules) families(labels extraLabels, isWanted func(name string) bool) []family {
	var families []family
	var samples []ruleSample
	for _, m := range ruleMetrics {
		name := "ratelimit_service_rate_limit_" + m.name
		if !isWanted(name) {
			continue
		}
		if samples == nil {
			samples = r.samples(time.Now())
		}
		if len(samples) == 0 {
			return nil // Prometheus does not want a metric without series
		}
		families = append(families, family{name, func(w io.Writer, format expfmt.Format) error {
			header := &dto.MetricFamily{Name: &name, Help: &m.help, Type: dto.MetricType_COUNTER.Enum()}
			return newPieces(header, samples, m.value, labels).write(w, format)
		}})
	}
	return families
}

// samples returns the counts of all series, sorted by labels. Series with the same labels are added,
// because Prometheus takes a series only once.
func (r *rules) samples(now time.Time) []ruleSample {
	limits := r.limits.all(now)
	samples := make([]ruleSample, 0, len(limits))
	for _, l := range limits {
		for s := range l.series() {
			samples = append(samples, ruleSample{labels: s.labels()})
			samples[len(samples)-1].add(&s.hitCounts)
		}
	}
	slices.SortFunc(samples, func(a, b ruleSample) int {
		return cmp.Or(cmp.Compare(a.labels.domain, b.labels.domain), cmp.Compare(a.labels.key1, b.labels.key1),
			cmp.Compare(a.labels.key2, b.labels.key2), cmp.Compare(a.labels.rule, b.labels.rule))
	})
	distinct := samples[:0]
	for _, s := range samples {
		if last := len(distinct) - 1; last >= 0 && distinct[last].labels == s.labels {
			distinct[last].addSums(s.HitSums)
			continue
		}
		distinct = append(distinct, s)
	}
	return distinct
}

// pieces encodes a metric of rules in pieces, whose memory it reuses.
type pieces struct {
	family  *dto.MetricFamily // the name, help and type of the metric, and in Metric the current piece
	samples []ruleSample
	value   func(*HitSums) uint64

	metrics []*dto.Metric // memory of the series of a piece
}

// newPieces returns pieces with the name, help and type of header.
func newPieces(header *dto.MetricFamily, samples []ruleSample, value func(*HitSums) uint64, extra extraLabels) *pieces {
	p := &pieces{family: header, samples: samples, value: value}
	for range min(samplesPerPiece, len(samples)) {
		var own []*dto.LabelPair
		for _, name := range []string{"domain", "key1", "key2", "rule"} {
			own = append(own, &dto.LabelPair{Name: &name})
		}
		p.metrics = append(p.metrics, &dto.Metric{Label: extra.addTo(own), Counter: &dto.Counter{Value: new(float64)}})
	}
	return p
}

// each calls f with each piece. f must not keep the piece.
func (p *pieces) each(f func([]*dto.Metric) error) error {
	for piece := range slices.Chunk(p.samples, samplesPerPiece) {
		for i := range piece {
			m := p.metrics[i]
			*m.Counter.Value = float64(p.value(&piece[i].HitSums))
			for _, l := range m.Label {
				if value := piece[i].labels.valueOf(l.GetName()); value != nil {
					l.Value = value
				}
			}
		}
		if err := f(p.metrics[:len(piece)]); err != nil {
			return err
		}
	}
	return nil
}

// valueOf returns the value of the label with this name, or nil.
func (l *ruleLabels) valueOf(name string) *string {
	switch name {
	case "domain":
		return &l.domain
	case "key1":
		return &l.key1
	case "key2":
		return &l.key2
	case "rule":
		return &l.rule
	}
	return nil
}

func (p *pieces) write(w io.Writer, format expfmt.Format) error {
	switch format.FormatType() {
	case expfmt.TypeProtoDelim:
		return p.writeDelimited(w)
	case expfmt.TypeTextPlain:
		return p.writeText(w, format)
	}
	// In the text formats of protobuf, which people read, each piece is a metric.
	encoder := expfmt.NewEncoder(w, format)
	return p.each(func(piece []*dto.Metric) error {
		p.family.Metric = piece
		return encoder.Encode(p.family)
	})
}

// writeText writes the lines of all pieces after the header of the first piece.
func (p *pieces) writeText(w io.Writer, format expfmt.Format) error {
	var text bytes.Buffer
	encoder := expfmt.NewEncoder(&text, format)
	isFirst := true
	return p.each(func(piece []*dto.Metric) error {
		p.family.Metric = piece
		text.Reset()
		if err := encoder.Encode(p.family); err != nil {
			return err
		}
		if !isFirst {
			_, _ = text.ReadBytes('\n') // leave out the line with the type
		}
		isFirst, p.family.Help = false, nil // so further headers have only the line with the type
		_, err := w.Write(text.Bytes())
		return err
	})
}

// writeDelimited writes the size of the message, and then the message in pieces. Protobuf reads encoded
// messages that follow each other as one message with the fields of all.
func (p *pieces) writeDelimited(w io.Writer) error {
	header, err := proto.Marshal(p.family)
	if err != nil {
		return err
	}
	size := len(header)
	_ = p.each(func(piece []*dto.Metric) error {
		size += proto.Size(&dto.MetricFamily{Metric: piece})
		return nil
	})
	if _, err := w.Write(append(protowire.AppendVarint(nil, uint64(size)), header...)); err != nil {
		return err
	}
	var encoded []byte
	return p.each(func(piece []*dto.Metric) (err error) {
		if encoded, err = (proto.MarshalOptions{}).MarshalAppend(encoded[:0], &dto.MetricFamily{Metric: piece}); err == nil {
			_, err = w.Write(encoded)
		}
		return err
	})
}
