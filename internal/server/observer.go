package server

// Observer learns of rare events of a Server. The log of the Server has the same events.
type Observer interface {
	// DrainStarted reports that the server stops, with the number of calls in flight.
	DrainStarted(callsInFlight int64)

	// DrainFinished reports the end of a drain, and the number of calls that were cut.
	DrainFinished(cut int64)

	// TLSReloaded reports that a listener uses other TLS files, or why it refused them.
	TLSReloaded(listener, subject string, err error)
}

type noObserver struct{}

func (noObserver) DrainStarted(int64)                {}
func (noObserver) DrainFinished(int64)               {}
func (noObserver) TLSReloaded(string, string, error) {}
