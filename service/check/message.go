package check

import "github.com/seed-81f232ab/rls/limit"

// MaxChecks is the maximum number of checks in a request.
const MaxChecks = 100

// Request is the body of a request.
type Request struct {
	// Domain is the domain of the checks without a domain of their own.
	Domain string `json:"domain,omitempty" jsonschema:"maxLength=1024"`

	// Rules adds the rule to each answer.
	Rules bool `json:"rules,omitempty"`

	// Checks are decided independently, each as a call of its own. Checks of the same counter are
	// decided in their order.
	Checks []Check `json:"checks" jsonschema:"minItems=1,maxItems=100"`
}

// Check asks whether hits on one descriptor pass, and charges the hits.
type Check struct {
	// Domain is the domain of a limits file. The default is the domain of the request.
	Domain string `json:"domain,omitempty"`

	// Descriptor has the entries that the rules of the domain match, in their order.
	Descriptor []Entry `json:"descriptor" jsonschema:"minItems=1"`

	// Hits is the number of hits to charge. The default is 1. 0 reads the counter and charges
	// nothing. A negative number gives hits back, which needs JSON_REFUNDS=true.
	Hits *int64 `json:"hits,omitempty" jsonschema:"minimum=-17179869184,maximum=17179869184"`

	// Hold is the id of the hold that the check takes, renews or gives back. Only limits of concurrency have holds.
	Hold string `json:"hold,omitempty"`
}

// maxHits is the maximum number of hits of a check, in both directions.
const maxHits int64 = limit.MaxHits

// Entry is a key and a value of a descriptor.
type Entry struct {
	Key string `json:"key"`

	// Value is empty by default.
	Value string `json:"value,omitempty"`
}

// Response is the answer to a request.
type Response struct {
	// Answers has an answer for each check, in the order of the request.
	Answers []Answer `json:"answers"`
}

// Answer is the answer to a check.
type Answer struct {
	// Code is OK if the hits pass, OVER_LIMIT if a limit denies them, and ERROR if nobody could
	// decide. Error then has the reason.
	Code Code `json:"code" jsonschema:"enum=OK,enum=OVER_LIMIT,enum=ERROR"`

	// Remaining is the number of hits that are left. It is missing if no limit was counted.
	Remaining *uint32 `json:"remaining,omitempty"`

	// ResetSeconds is the time until a denied check can pass, or else until the limit resets. It is
	// missing if no limit was counted.
	ResetSeconds *float64 `json:"reset_seconds,omitempty"`

	// CanNeverPass is true if the limit can never admit this number of hits. Waiting does not help.
	CanNeverPass bool `json:"never,omitempty"`

	// Limit is the limit that Remaining and ResetSeconds describe. If several limits count the
	// descriptor, it is the denying limit, or else the limit with the least remaining.
	Limit *Limit `json:"limit,omitempty"`

	// Rule is the path of the rule in its limits file. It is empty if Rules is false in the
	// request, or if no rule limits the descriptor.
	Rule string `json:"rule,omitempty"`

	Error *Error `json:"error,omitempty"`
}

// Code is the code of an Answer.
type Code string

// The codes.
const (
	OK        Code = "OK"
	OverLimit Code = "OVER_LIMIT"
	Failed    Code = "ERROR"
)

// Limit is a limit in an answer.
type Limit struct {
	// Name is the name of the limit in its limits file.
	Name string `json:"name,omitempty"`

	// RequestsPerUnit is the number of hits that a window admits.
	RequestsPerUnit uint32 `json:"requests_per_unit"`

	// Unit and UnitMultiplier are the length of the window.
	Unit           string `json:"unit"`
	UnitMultiplier uint32 `json:"unit_multiplier"`

	// Algorithm is the name of the algorithm in limits files.
	Algorithm string `json:"algorithm"`
}

// Error is the reason why a check, or a whole request, failed.
type Error struct {
	// Code is the name of a status code of gRPC, such as INVALID_ARGUMENT.
	Code string `json:"code"`

	Message string `json:"message"`
}

// Refusal is the answer to a request that was refused as a whole. Nothing was charged.
type Refusal struct {
	Error Error `json:"error"`
}
