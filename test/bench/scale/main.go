// Command scale simulates services that are too large for one machine: many replicas, one Redis
// or a Cluster. Its costs come from the figures of `make bench-curves`. A seed makes each run
// the same.
//
//	scale -run docs/lab/bench/curves.json -out docs/lab/bench/scale.json -page docs/lab/scale.md
package main

import (
	"encoding/json"
	"flag"
	"log"
	"os"
	"runtime"
	"sync"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// outcome is all that the command writes.
type outcome struct {
	Costs        costs         `json:"costs"`
	Calibrations []calibration `json:"calibrations"`
	Growth       []result      `json:"growth"`
	Capacities   []capacity    `json:"capacities"`
	Special      []result      `json:"special"`
}

func main() {
	log.SetFlags(0)
	run := flag.String("run", "docs/lab/bench/curves.json", "file with the measured figures")
	out := flag.String("out", "docs/lab/bench/scale.json", "file for the simulated figures")
	page := flag.String("page", "docs/lab/scale.md", "page for the tables, between the marks scale")
	seed := flag.Uint64("seed", 1, "seed of the random numbers")
	flag.Parse()
	if err := write(*run, *out, *page, *seed); err != nil {
		log.Fatal("scale: ", err)
	}
}

func write(path, out, page string, seed uint64) error {
	run, err := curves.Read(path)
	if err != nil {
		return err
	}
	c, err := costsOf(run)
	if err != nil {
		return err
	}
	o := outcome{
		Costs: c, Calibrations: calibrate(run, c, seed), Capacities: capacities(c, seed),
		Growth: simulateAll(growth(seed), c), Special: simulateAll(special(seed), c),
	}
	text, err := json.MarshalIndent(o, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(out, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return curves.ReplaceSection(page, "scale", section(run, o))
}

// simulateAll runs plans on all cores.
func simulateAll(plans []plan, c costs) []result {
	results := make([]result, len(plans))
	var workers sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, p := range plans {
		slots <- struct{}{}
		workers.Go(func() {
			results[i] = simulate(p, c)
			<-slots
		})
	}
	workers.Wait()
	return results
}
