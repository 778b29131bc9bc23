package boundedyaml

import (
	"sync"

	"go.yaml.in/yaml/v3"
)

// parsedPiece is the result of parsePiece.
type parsedPiece struct {
	items []*yaml.Node
	err   error
}

// parseAhead parses several pieces at the same time. next waits for the items of a piece, in the
// order of the pieces. stop ends the parsers and waits for their end.
func (d *Document) parseAhead() (next func(i int) ([]*yaml.Node, error), stop func()) {
	queue := make(chan chan parsedPiece, d.bounds.Parsers-1) // in the order of the pieces
	stopped := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for i := range d.pieces {
			result := make(chan parsedPiece, 1)
			select {
			case queue <- result:
			case <-stopped:
				return
			}
			running.Go(func() {
				items, err := d.parsePiece(i)
				result <- parsedPiece{items, err}
			})
		}
	})
	next = func(int) ([]*yaml.Node, error) {
		p := <-<-queue
		return p.items, p.err
	}
	return next, func() {
		close(stopped)
		running.Wait()
	}
}
