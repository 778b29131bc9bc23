package limit

// Keys of gRPC metadata between rls and clients that wait for permits. docs/client.md
// describes their values.
const (
	// AcquireKey marks a call whose answer has one of the headers below. With the value "true", the
	// call charges nothing if it is denied. With "false", it charges as other calls do.
	AcquireKey = "rls-acquire"

	// RetryAfterKey is the header of the answer to a marked call that is denied. Its value is
	// the time until the call can pass in seconds, such as "0.25", or RetryNever.
	RetryAfterKey = "rls-retry-after"

	// RetryNever is the RetryAfterKey of a call whose hits exceed the capacity of a limit.
	RetryNever = "never"

	// ResetAfterKey is the header of the answer to a marked call that passes. Its value is the
	// time in seconds until all limits of the call have forgotten its hits.
	ResetAfterKey = "rls-reset-after"

	// HoldKey names the hold of a call to limits with holds. Its value is the id of the hold. In
	// the header of the answer, its value is the time in seconds until the hold expires if the
	// caller does not renew it. It is the key of the HTTP header too.
	HoldKey = "rls-hold"
)
