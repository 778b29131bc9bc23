// Command plots draws the figures of `make bench-curves`, and writes their tables into a page.
//
//	plots -run docs/lab/bench/curves.json -plots docs/lab/bench -page docs/lab/benchmarks.md
//	plots -patterns docs/patterns -page docs/lab/algorithms.md
//
// With -patterns, it draws what each algorithm admits of a burst, a ramp and a boundary, and the calls in
// flight of a slow endpoint.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

func main() {
	log.SetFlags(0)
	run := flag.String("run", "docs/lab/bench/curves.json", "file with the figures")
	folder := flag.String("plots", "docs/lab/bench", "folder for the plots")
	scale := flag.String("scale", "", "file with the simulated figures; if empty, they are not drawn")
	page := flag.String("page", "docs/lab/benchmarks.md", "page for the tables, between the marks bench-curves or patterns")
	patternFolder := flag.String("patterns", "", "folder for the pictures of the algorithms; if set, nothing else is drawn")
	flag.Parse()
	if *patternFolder != "" {
		if err := writePatterns(*patternFolder, *page); err != nil {
			log.Fatal("plots: ", err)
		}
		return
	}
	if err := write(*run, *scale, *folder, *page); err != nil {
		log.Fatal("plots: ", err)
	}
}

// write draws all plots and replaces the section of the page. A missing page is created.
func write(path, scale, folder, page string) error {
	run, err := curves.Read(path)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, draw := range map[string]func(*curves.Run) ([][]panel, error){
		"latency": latencyPanels, "cpu": cpuPanels, "algorithms": algorithmPanels,
	} {
		panels, err := draw(run)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := save(panels, filepath.Join(folder, name+".svg")); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if scale != "" {
		panels, err := scalePanels(scale)
		if err != nil {
			return err
		}
		if err := save(panels, filepath.Join(folder, "scale.svg")); err != nil {
			return fmt.Errorf("scale: %w", err)
		}
	}
	if _, err := os.Stat(page); errors.Is(err, fs.ErrNotExist) {
		text := "# Measured servers\n\n<!-- bench-curves -->\n<!-- /bench-curves -->\n"
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			return err
		}
	}
	images, err := filepath.Rel(filepath.Dir(page), folder)
	if err != nil {
		return err
	}
	return curves.ReplaceSection(page, "bench-curves", section(run, filepath.ToSlash(images)))
}
