package limitstest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/internal/base/entrytext"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

// Bounds of a test file.
const (
	MaxFileBytes = 16 << 20
	MaxRepeat    = 100_000
	MaxRequests  = 1_000_000 // bounds the requests of all tests, with repetitions
)

var (
	minTime = time.Date(1971, 1, 1, 0, 0, 0, 0, time.UTC)
	maxTime = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// defaultStart is the default start. A window of a second, a minute, an hour, a day or a week starts at this time.
var defaultStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Parse reads a test file. The error is fields.Problems: all problems with their places.
func Parse(name string, data []byte) (*File, error) {
	file := &File{Name: name}
	yamlFile := fields.File{Name: name, Data: data, MaxBytes: MaxFileBytes, ItemsName: "tests", EmptyProblem: "limits and tests are missing"}
	err := yamlFile.Read(func(r *fields.Reader, root *yaml.Node) {
		p := &parser{Reader: r, file: file, start: defaultStart}
		p.parseFile(root)
	})
	if err != nil {
		return nil, err
	}
	return file, nil
}

type parser struct {
	*fields.Reader
	file     *File
	requests int // the number of requests that are read, with repetitions

	domain string    // the default domain of the tests
	start  time.Time // the default start of the tests
}

const (
	wantDuration = "a duration such as 500ms, 90s, 1h30m or 30d"
	wantTime     = "a time such as 2026-01-01T09:30:00Z"
)

var (
	fileFields = []fields.Field{
		{Name: "limits", Kind: fields.Any, Remedy: "write limits: and the path of a limits file, relative to this file"},
		{Name: "merge", Kind: fields.Flag},
		{Name: "domain", Kind: fields.NonEmpty},
		startField,
		{Name: "settings", Kind: fields.Object},
		{Name: "tests", Kind: fields.List, Min: 1, Remedy: "write a list of tests, each with name and requests"},
	}
	settingFields = []fields.Field{
		{Name: "shadow_mode", Kind: fields.Flag},
		{Name: "quota_mode", Kind: fields.Flag},
		{Name: "all_or_none", Kind: fields.Flag},
	}
	testFields = []fields.Field{
		{Name: "name", Kind: fields.NonEmpty, Remedy: "write name: and what the test shows"},
		{Name: "domain", Kind: fields.NonEmpty},
		startField,
		{Name: "requests", Kind: fields.List, Min: 1, Remedy: "write a list of requests, each with descriptor and want"},
	}
	requestFields = []fields.Field{
		{Name: "descriptor", Kind: fields.Any},
		{Name: "descriptors", Kind: fields.List, Min: 1},
		{Name: "domain", Kind: fields.NonEmpty},
		{Name: "at", Kind: fields.NonEmpty, Want: wantDuration + " since the start of the test, or " + wantTime},
		{Name: "repeat", Kind: fields.Count, Min: 1, Max: MaxRepeat},
		{Name: "every", Kind: fields.NonEmpty, Want: wantDuration},
		hitsField,
		limitField,
		{Name: "want", Kind: fields.Object, Remedy: "write want: {code: OK} or what else the answer must be"},
	}
	descriptorFields = []fields.Field{
		{Name: "descriptor", Kind: fields.NonEmpty, Remedy: wantDescriptor},
		hitsField,
		limitField,
	}
	statusFields = []fields.Field{
		{Name: "code", Kind: fields.Choice, Choices: []string{"OK", "OVER_LIMIT"}},
		{Name: "rule", Kind: fields.NonEmpty},
		{Name: "denied_in_shadow", Kind: fields.Flag},
		limitField,
		{Name: "remaining", Kind: fields.Count, Max: fields.MaxCount},
		{Name: "reset", Kind: fields.NonEmpty, Want: wantDuration},
	}
	wantFields = append(statusFields[:len(statusFields):len(statusFields)], []fields.Field{
		{Name: "statuses", Kind: fields.List, Min: 1},
		{Name: "body", Kind: fields.NonEmpty},
		{Name: "headers", Kind: fields.AnyMapping, Want: "a mapping of names to values"},
		{Name: "admitted", Kind: fields.Count, Max: MaxRepeat},
		{Name: "error", Kind: fields.NonEmpty},
	}...)

	startField = fields.Field{Name: "start", Kind: fields.NonEmpty, Want: wantTime + ", from 1971 to 2199"}
	hitsField  = fields.Field{Name: "hits", Kind: fields.Count, Min: -limit.MaxHits, Max: limit.MaxHits}
	limitField = fields.Field{Name: "limit", Kind: fields.NonEmpty}
)

const wantDescriptor = "write descriptor: key=value,key=value"

func (p *parser) parseFile(root *yaml.Node) {
	file := p.file
	values := p.Object(root, "test file", fileFields)
	if limits := values["limits"]; limits.IsPresent() {
		file.Limits = p.parseLimits(limits)
	}
	file.MergesDomains, p.domain = values["merge"].Flag, values["domain"].Text
	p.start = p.parseTime(values["start"], p.start)
	if n := values["settings"]; n.IsPresent() {
		settings := p.Object(n.Node, "settings", settingFields)
		file.Settings = service.Options{ShadowMode: settings["shadow_mode"].Flag, QuotaMode: settings["quota_mode"].Flag, AllOrNone: settings["all_or_none"].Flag}
	}
	testLines := map[string]int{} // the line of each test; the key is the name of the test
	for _, n := range p.Items(values["tests"]) {
		test := p.parseTest(n)
		if line := testLines[test.Name]; line > 0 && test.Name != "" {
			p.Errorf(n, "the test in line %d has the same name; give each test its own name", line)
		}
		testLines[test.Name] = n.Line
		file.Tests = append(file.Tests, test)
		p.Path = ""
	}
}

func (p *parser) parseLimits(v fields.FieldValue) (paths []string) {
	path := fields.Field{Name: "limits", Kind: fields.NonEmpty, Min: 1}
	items := []*yaml.Node{v.Node}
	if v.Node.Kind == yaml.SequenceNode {
		items = p.List(v.Node, fields.Field{Name: "limits", Kind: fields.List, Min: 1})
	}
	for _, item := range items {
		paths = append(paths, p.Read(item, path).Text)
	}
	return paths
}

func (p *parser) parseTest(n *yaml.Node) Test {
	values := p.Object(n, "test", testFields)
	test := Test{Line: n.Line, Name: values["name"].Text}
	p.Path = fields.Printable(test.Name)
	domain := cmp.Or(values["domain"].Text, p.domain)
	start := p.parseTime(values["start"], p.start)
	previousTime := start
	for _, item := range p.Items(values["requests"]) {
		r := p.parseRequest(item, domain, start, previousTime)
		previousTime = r.sendTime(max(r.Repetitions, 1) - 1)
		if previousTime.After(maxTime) || previousTime.Before(r.FirstTime) { // the multiplication can overflow
			p.Errorf(item, "repeat and every: the last request is after the year 2199")
			previousTime = r.FirstTime
		}
		test.Requests = append(test.Requests, r)
	}
	return test
}

func (p *parser) parseRequest(node *yaml.Node, domain string, start, previousTime time.Time) Request {
	request := Request{Line: node.Line, FirstTime: previousTime, Repetitions: 1, Message: &rlsv3.RateLimitRequest{}}
	values := p.Object(node, "request", requestFields)
	if values == nil {
		return request
	}
	if atField := values["at"]; atField.IsPresent() {
		if request.FirstTime = p.parseTime(atField, start); request.FirstTime.Before(previousTime) {
			p.Errorf(atField.Node, "at: got %s, which is before the request above (%s); put the requests in the order of their times", atField.Text, previousTime.Sub(start))
		}
	}
	request.Repetitions = max(int(values["repeat"].Number), 1)
	if p.requests += request.Repetitions; p.requests > MaxRequests && p.requests-request.Repetitions <= MaxRequests {
		p.Errorf(node, "file has more than %d requests, with repetitions; split the file", MaxRequests)
	}
	if everyField := values["every"]; everyField.IsPresent() {
		if request.Repetitions == 1 {
			p.Errorf(everyField.Node, "every has no meaning without repeat")
		}
		request.Pause = p.parseDuration(everyField)
	}
	request.Message.Domain = cmp.Or(values["domain"].Text, domain)
	if request.Message.Domain == "" {
		p.Errorf(node, "domain is missing; write domain: in the request, its test or the root of the file")
	}
	var items []*yaml.Node
	switch descriptor, list := values["descriptor"], values["descriptors"]; {
	case descriptor.IsPresent() && list.IsPresent():
		p.Errorf(list.Node, "descriptor and descriptors are both given; put all descriptors into descriptors")
	case descriptor.IsPresent():
		items = []*yaml.Node{descriptor.Node}
	case list.IsPresent():
		items = p.Items(list)
	default:
		p.Errorf(node, "descriptor is missing; "+wantDescriptor)
	}
	for _, item := range items {
		p.parseDescriptor(&request, item, values["hits"], values["limit"])
	}
	if want := values["want"]; want.IsPresent() {
		p.parseWant(&request, want.Node)
	}
	return request
}

// parseDescriptor adds a descriptor to request. hits and requestLimit are the fields of the request.
func (p *parser) parseDescriptor(request *Request, node *yaml.Node, hits, requestLimit fields.FieldValue) {
	var descriptor string
	if node.Kind == yaml.MappingNode {
		values := p.Object(node, "descriptor", descriptorFields)
		descriptor = values["descriptor"].Text
		if field := values["hits"]; field.IsPresent() {
			hits = field
		}
		if field := values["limit"]; field.IsPresent() {
			requestLimit = field
		}
		node = cmp.Or(values["descriptor"].Node, node)
	} else {
		descriptor = p.Read(node, descriptorFields[0]).Text
	}
	if descriptor == "" {
		return
	}
	parsedDescriptor := &ratelimitv3.RateLimitDescriptor{}
	var err error
	if parsedDescriptor.Entries, err = entrytext.ParseRequest(descriptor); err != nil {
		p.Errorf(node, "%v", err)
	}
	if requestLimit.Text != "" {
		if parsedDescriptor.Limit, err = explain.ParseLimit(requestLimit.Text); err != nil {
			p.Errorf(requestLimit.Node, "%v", err)
		}
	}
	if hits.IsPresent() {
		parsedDescriptor.IsNegativeHits = hits.Number < 0
		parsedDescriptor.HitsAddend = wrapperspb.UInt64(uint64(max(hits.Number, -hits.Number)))
	}
	request.Descriptors = append(request.Descriptors, descriptor)
	request.Message.Descriptors = append(request.Message.Descriptors, parsedDescriptor)
}

func (p *parser) parseWant(request *Request, node *yaml.Node) {
	values := p.Object(node, "want", wantFields)
	if values != nil && len(values) == 0 {
		p.Errorf(node, "want is empty; write want: {code: OK} or what else the answer must be")
	}
	statuses := p.Items(values["statuses"])
	for _, field := range wantFields {
		value := values[field.Name]
		isStatusField := field.Name != "code" && slices.Contains(fields.Names(statusFields), field.Name)
		switch {
		case !value.IsPresent():
		case field.Name != "error" && values["error"].IsPresent():
			p.Errorf(value.Node, "%s has no meaning beside error, because a failed call has no answer", field.Name)
		case isStatusField && values["statuses"].IsPresent():
			p.Errorf(value.Node, "%s has no meaning beside statuses; it belongs in an item of statuses", field.Name)
		case isStatusField && len(request.Descriptors) > 1:
			p.Errorf(node, "the request has %d descriptors; write statuses: and one item for each of them", len(request.Descriptors))
		case field.Name == "statuses" && len(statuses) != len(request.Descriptors):
			p.Errorf(value.Node, "statuses: got %d items, want one for each of the %d descriptors", len(statuses), len(request.Descriptors))
		case field.Name == "statuses":
			p.parseStatuses(request, statuses)
		case field.Name == "headers":
			p.parseHeaders(request, value.Node)
		case field.Name == "error":
			request.WantedError = value.Text
		default:
			if field.Name == "admitted" && value.Number > int64(request.Repetitions) {
				p.Errorf(value.Node, "admitted: got %d, want a whole number from 0 to %d", value.Number, request.Repetitions)
			}
			request.Want = append(request.Want, Want{Field: field.Name, Label: field.Name, Descriptor: wholeAnswer, Text: p.wantedText(value)})
		}
	}
}

func (p *parser) parseStatuses(request *Request, items []*yaml.Node) {
	for i, item := range items {
		label := ""
		if len(items) > 1 {
			label = fmt.Sprintf("statuses[%d].", i)
		}
		status := p.Object(item, "status", statusFields)
		for _, f := range statusFields {
			if v := status[f.Name]; v.IsPresent() {
				request.Want = append(request.Want, Want{Field: f.Name, Label: label + f.Name, Descriptor: i, Text: p.wantedText(v)})
			}
		}
	}
}

func (p *parser) parseHeaders(r *Request, n *yaml.Node) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := strings.ToLower(p.Read(n.Content[i], fields.Field{Name: "name of a header", Kind: fields.NonEmpty}).Text)
		value := fields.Field{Name: "value of header " + fields.Printable(name), Kind: fields.NonEmpty}
		r.Want = append(r.Want, Want{Field: "headers", Header: name, Label: "header " + name, Text: p.Read(n.Content[i+1], value).Text})
	}
}

// wantedText returns a wanted value in the same form as the values of answers.
func (p *parser) wantedText(v fields.FieldValue) string {
	switch {
	case v.Name == "reset":
		return p.parseDuration(v).String()
	case v.Kind == fields.Count:
		return strconv.FormatInt(v.Number, 10)
	case v.Kind == fields.Flag:
		return strconv.FormatBool(v.Flag)
	}
	return v.Text
}

// reject reports a text that is not allowed in its field. It does nothing for an empty text, which is reported already.
func (p *parser) reject(v fields.FieldValue) {
	if v.Text != "" {
		p.Errorf(v.Node, "%s: got %s, want %s", v.Name, fields.Display(v.Node), v.Want)
	}
}

func (p *parser) parseDuration(v fields.FieldValue) time.Duration {
	d, ok := parseDuration(v.Text)
	if !ok {
		p.reject(v)
	}
	return d
}

// parseDuration parses a duration of whole microseconds, at least 0. The text can begin with days, such as 1d12h.
func parseDuration(text string) (time.Duration, bool) {
	const day, maxDays = 24 * time.Hour, 100_000
	var days uint64
	if daysText, timeText, ok := strings.Cut(text, "d"); ok {
		var err error
		if days, err = strconv.ParseUint(daysText, 10, 32); err != nil || days > maxDays {
			return 0, false
		}
		text = cmp.Or(timeText, "0")
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxDays*day || d%time.Microsecond != 0 {
		return 0, false
	}
	return time.Duration(days)*day + d, days*uint64(day)+uint64(d) <= maxDays*uint64(day)
}

// parseTime reads the field start, or the field at, which can also be a duration since start. The default is start.
func (p *parser) parseTime(v fields.FieldValue, start time.Time) time.Time {
	if !v.IsPresent() {
		return start
	}
	t, err := time.Parse(time.RFC3339, v.Text)
	if d, ok := parseDuration(v.Text); ok && v.Name == "at" {
		t, err = start.Add(d), nil
	}
	if err != nil || t.Before(minTime) || t.After(maxTime) {
		p.reject(v)
		return start
	}
	return t.UTC()
}
