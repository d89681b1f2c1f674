package config

import (
	"slices"
	"strings"
	"time"
)

// Providers is the [providers] section: limits of single providers, by their names.
type Providers struct {
	// MaxSandboxes is how many sandboxes a provider may have, stopped ones left aside.
	MaxSandboxes map[string]int
	// MaxHours is how many hours all sandboxes of a provider together may run in a calendar month.
	MaxHours map[string]int
	// CreateTimeout and CallTimeout replace those of the [manager] section.
	CreateTimeout, CallTimeout map[string]time.Duration
	// DeleteStopped is the time after which a cloud deletes a sandbox that is stopped and whose
	// policy does not say.
	DeleteStopped time.Duration
}

func defaultProviders() Providers { return Providers{DeleteStopped: 30 * 24 * time.Hour} }

func providersSettings() []setting {
	return []setting{
		defineSetting(KeyProviderSandboxes, func(c *Config) *map[string]int { return &c.Providers.MaxSandboxes }, setProviderCounts,
			"The number of sandboxes of single providers, not counting stopped, suspended and archived ones: `{ e2b = 10 }`. The variable: `e2b=10 docker=5`.").
			describedBy("`manager.max_sandboxes` alone counts"),
		defineSetting(KeyProviderHours, func(c *Config) *map[string]int { return &c.Providers.MaxHours }, setProviderCounts,
			"The hours that all sandboxes of a provider together may run in a calendar month (UTC): `{ e2b = 500 }`. Then none starts there, and those that run are suspended, stopped or paused, or deleted where that is not possible.").
			describedBy("no limit"),
		defineSetting(KeyProviderCreateTimeout, func(c *Config) *map[string]time.Duration { return &c.Providers.CreateTimeout }, setProviderTimes,
			"The time limit for creating a sandbox with single providers: `{ e2b = 60 }`.").describedBy("`manager.create_timeout`"),
		defineSetting(KeyProviderCallTimeout, func(c *Config) *map[string]time.Duration { return &c.Providers.CallTimeout }, setProviderTimes,
			"The time limit for other calls of single providers: `{ e2b = 20 }`.").describedBy("`manager.call_timeout`"),
		defineSetting(KeyProviderDelete, func(c *Config) *time.Duration { return &c.Providers.DeleteStopped }, timeOf("2592000"),
			"The time after which a cloud deletes a stopped sandbox whose policy has no time for that, so that none costs money for ever."),
	}
}

// fillProvider sets the default provider to the first of the list.
func (l *loader) fillProvider() {
	if len(l.cfg.ProviderList) > 0 {
		l.cfg.Provider = l.cfg.ProviderList[0]
	}
}

// setProviders reads one name, a list of names, or names with commas between them.
func setProviders(field *[]string, v any) error {
	list, ok := listOf(v)
	if text, isText := textOf(v); isText {
		list = strings.Split(text, ",")
	}
	if !ok || len(list) == 0 {
		var name string
		return setName(&name, v) // which says what a name is
	}
	var names []string
	for _, text := range list {
		var name string
		if err := setName(&name, strings.TrimSpace(text)); err != nil {
			return err
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	*field = names
	return nil
}

func setProviderCounts(field *map[string]int, v any) error {
	return setCounts(field, v, "{ e2b = 10 }", namePattern().MatchString)
}

// setProviderTimes reads a table of times, or words such as e2b=60 docker=2m.
func setProviderTimes(field *map[string]time.Duration, v any) error {
	return valueTable[time.Duration]{
		values: "times", key: "name of a provider", example: "{ e2b = 60 }", isKey: namePattern().MatchString, set: timeOf("the default"),
	}.read(field, v)
}
