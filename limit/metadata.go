package limit

// Keys of gRPC metadata between rls and clients that wait for permits. docs/client.md describes their values.
const (
	// AcquireKey marks a call that wants one of the headers below in its answer. With the value "true", the call
	// charges nothing if it is denied.
	AcquireKey = "rls-acquire"

	// RetryAfterKey is the time in seconds until a denied call can pass, such as "0.25", or RetryNever.
	RetryAfterKey = "rls-retry-after"

	// RetryNever is the RetryAfterKey of a call with more hits than the capacity of a limit.
	RetryNever = "never"

	// ResetAfterKey is the time in seconds until all limits of an admitted call have forgotten its hits.
	ResetAfterKey = "rls-reset-after"

	// HoldKey is the id of the hold of a call, also as an HTTP header. In the answer, it is the time in seconds
	// until the hold expires.
	HoldKey = "rls-hold"
)
