package main

import (
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/observe/live"
)

// rulePaths returns the paths of rules. With --limits, these are the rules of the files. Otherwise, they are the rules in
// force in the service at --admin. If the service does not answer within a second, or within --timeout, rulePaths returns
// the rules of the files at LIMITS_PATH.
func rulePaths(cmd *cobra.Command, filter string) (paths []string) {
	client, files := adminClient{addr: "localhost:6070", timeout: time.Second}, []string{os.Getenv("LIMITS_PATH")}
	if flag := cmd.Flag("admin"); flag != nil {
		client.addr = flag.Value.String()
	}
	if flag := cmd.Flag("timeout"); flag != nil && flag.Changed {
		client.timeout, _ = cmd.Flags().GetDuration("timeout")
	}
	flag, answer := cmd.Flag("limits"), live.RulesAnswer{}
	if flag != nil && flag.Changed {
		files, _ = cmd.Flags().GetStringSlice("limits")
		slices.Sort(files) // cobra reads flags twice, so each file is here twice; Compact below removes one of them
	} else if client.call(cmd.Context(), http.MethodGet, live.RulesPath, url.Values{"filter": {filter}}, nil, &answer) == nil {
		for _, r := range answer.Rules {
			paths = append(paths, r.Path)
		}
		return paths
	}
	if config, err := loadLimits(nil, slices.Compact(files), limitsfile.Options{MergeDomains: true}); err == nil {
		config.EachDescriptor(func(domain string, trail []*limitsfile.Descriptor) {
			paths = append(paths, limitsfile.Path(domain, trail))
		})
	}
	return paths
}

func completeDomain(cmd *cobra.Command, _ []string, start string) (domains []string, _ cobra.ShellCompDirective) {
	for _, path := range rulePaths(cmd, start) {
		domain, _, _ := strings.Cut(path, " > ")
		domains = append(domains, domain)
	}
	return completions(domains, start), cobra.ShellCompDirectiveNoFileComp
}

func completeRule(cmd *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	return completions(rulePaths(cmd, start), start), cobra.ShellCompDirectiveNoFileComp
}

// completeDescriptor completes the last entry of a descriptor of --domain, if a rule has the entries before it.
func completeDescriptor(cmd *cobra.Command, _ []string, start string) (descriptors []string, _ cobra.ShellCompDirective) {
	domain, typedEntries := cmd.Flag("domain").Value.String(), strings.Split(start, ",")
	lastIndex := len(typedEntries) - 1
	isSameEntry := func(typedEntry, ruleEntry string) bool {
		return typedEntry == ruleEntry || strings.HasPrefix(typedEntry, ruleEntry+"=")
	}
	for _, path := range rulePaths(cmd, domain) {
		entries := strings.Split(path, " > ")[1:]
		if !strings.HasPrefix(path, domain+" > ") || len(entries) <= lastIndex || !slices.EqualFunc(typedEntries[:lastIndex], entries[:lastIndex], isSameEntry) {
			continue
		}
		entry := entries[lastIndex]
		if !strings.Contains(entry, "=") {
			entry += "=" // the rule is for any value of the key, and the user types a value
		}
		descriptors = append(descriptors, strings.Join(append(typedEntries[:lastIndex:lastIndex], entry), ","))
	}
	return completions(descriptors, start), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// completions returns the texts that begin with start, each once.
func completions(texts []string, start string) []string {
	slices.Sort(texts)
	return slices.DeleteFunc(slices.Compact(texts), func(text string) bool { return !strings.HasPrefix(text, start) })
}
