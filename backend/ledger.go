package backend

import (
	"context"

	"github.com/seed-81f232ab/rls/limit"
)

// Ledger sells the hits of limits of scope global to regions. All regions have the same Ledger.
type Ledger interface {
	// Buy executes each order, and sets its fields Granted, Free and Err.
	Buy(ctx context.Context, orders []*Order)

	// Reset forgets what was sold in the window of o and in its neighbours.
	Reset(ctx context.Context, o *Order) error
}

// Order asks a Ledger for hits of one counter in one regional window. See limit.RegionShare.
type Order struct {
	Key    []byte
	Limit  *limit.Limit // has scope global
	Share  *limit.RegionShare
	Region string

	WindowStart, WindowEnd int64   // in microseconds since 1970
	Want                   int64   // the hits that the region would like to buy; 0 only sets Free
	Least                  int64   // the hits that the region needs at once, even if it then has many unused hits
	Unused                 int64   // the hits that the region has bought for the window and not used
	Rate                   float64 // the hits that callers in the region ask for, per second

	Granted int64 // the hits that the region has bought; at most Want
	Free    int64 // the hits that can still be bought
	Err     error // if Err is not nil, the Ledger may have sold the hits
}
