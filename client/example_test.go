package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/client/local"
)

// newExampleClient returns a client that decides in this process, so that the examples need no
// service. Programs call client.New with the address of their service.
func newExampleClient(limits string) *client.Client {
	parsedLimits, err := local.ParseLimits("limits.yaml", limits)
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.NewLocal(parsedLimits, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return c
}

const exampleLimits = `
domain: shop
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: year, requests_per_unit: 3, algorithm: first_hit_window}
  - key: partner
    rate_limit: {unit: millisecond, unit_multiplier: 50, requests_per_unit: 1, algorithm: sliding_log}
  - key: peer
    rate_limit: {unit: second, requests_per_unit: 1, algorithm: sliding_log}
`

func Example() {
	c, err := client.New("localhost:8081", client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
}

func ExampleClient_Allow() {
	c := newExampleClient(exampleLimits)
	defer c.Close()
	for range 4 {
		ok, err := c.Allow(context.Background(), "shop", client.NewDescriptor("tenant", "acme"))
		fmt.Println(ok, err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// true <nil>
	// false <nil>
}

func ExampleClient_Acquire() {
	c := newExampleClient(exampleLimits)
	defer c.Close()
	startTime := time.Now()
	for range 3 {
		if err := c.Acquire(context.Background(), "shop", client.NewDescriptor("partner", "bank")); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("the third permit came after two windows:", time.Since(startTime) >= 100*time.Millisecond)
	// Output: the third permit came after two windows: true
}

func ExampleWaitError() {
	c := newExampleClient(exampleLimits)
	defer c.Close()
	tenant := client.NewDescriptor("tenant", "acme")
	_ = c.AcquireN(context.Background(), 3, "shop", tenant)

	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	var waitError *client.WaitError
	if err := c.Acquire(ctx, "shop", tenant); errors.As(err, &waitError) {
		fmt.Println("a permit comes in about", waitError.Wait.Round(24*time.Hour))
	}
	// Output: a permit comes in about 8760h0m0s
}

func ExampleClient_Reserve() {
	c := newExampleClient(exampleLimits)
	defer c.Close()
	work := func() error { return errors.New("the order is empty") }

	tenant := client.NewDescriptor("tenant", "acme")
	r, err := c.Reserve(context.Background(), "shop", tenant)
	if err != nil {
		log.Fatal(err)
	}
	if r.OK() {
		if work() == nil {
			r.Commit()
		}
	}
	_ = r.Cancel() // does nothing after Commit

	d, _ := c.Peek(context.Background(), "shop", tenant)
	fmt.Println("permits left:", d.Remaining)
	// Output: permits left: 3
}
