package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed-81f232ab/rls/limit"
)

func TestPicturesInDocsShowWhatTheAlgorithmsAdmit(t *testing.T) {
	const docs = "../../../docs"
	page, err := os.ReadFile(filepath.Join(docs, "lab/algorithms.md"))
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	drawnPage := filepath.Join(folder, "algorithms.md")
	if err := os.WriteFile(drawnPage, page, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writePatterns(folder, drawnPage); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{drawnPage: filepath.Join(docs, "lab/algorithms.md")}
	for _, name := range []string{"burst", "ramp", "boundary", "slow"} {
		files[filepath.Join(folder, name+".svg")] = filepath.Join(docs, "patterns", name+".svg")
	}
	for drawnFile, committedFile := range files {
		got, err := os.ReadFile(drawnFile)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(committedFile)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: got an old version, want the one that make docs writes", committedFile)
		}
	}
}

// The table in docs/lab/algorithms.md states these bounds.
func TestPatternsShowTheErrorOfEachAlgorithm(t *testing.T) {
	boundary := patterns()[2]
	for algorithm, want := range map[limit.Algorithm]int{
		limit.FixedWindow: 2 * patternLimit, limit.SlidingLog: patternLimit,
	} {
		admitted, err := boundary.admitted(algorithm)
		if err != nil {
			t.Fatal(err)
		}
		if got := mostInMinute(admitted); got != want {
			t.Errorf("%s at a boundary: got %d in a minute, want %d", algorithm, got, want)
		}
	}
}

// docs/lab/algorithms.md states these bounds too.
func TestOnlySlotsBoundTheCallsOfASlowEndpoint(t *testing.T) {
	for algorithm, want := range map[limit.Algorithm]float64{
		limit.FixedWindow: 20, limit.TokenBucket: 20, limit.Concurrency: endpointSlots,
	} {
		admitted, err := admittedCalls(algorithm, slowCalls())
		if err != nil {
			t.Fatal(err)
		}
		if got := highest(mostInFlight(admitted)); got != want {
			t.Errorf("%s: got %.0f calls in flight, want %.0f", algorithm, got, want)
		}
	}
}

func TestMinuteExcludesItsEnd(t *testing.T) {
	if got := mostInMinute([]time.Duration{0, time.Second, time.Minute}); got != 2 {
		t.Errorf("most in a minute: got %d, want 2", got)
	}
}
