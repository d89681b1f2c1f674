package config

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// E2BCloud is the [e2b_cloud] section: the cloud of provider e2b. The section [e2b] is about clients of E2B's API that use
// this server instead of that cloud.
type E2BCloud struct {
	// Key is the API key of the account.
	Key Secret
	// Domain is the domain of the cloud. APIURL and SandboxURL replace the addresses that follow from it.
	Domain, APIURL, SandboxURL string
	// Template is the template of sandboxes whose requests name none.
	Template string
	// Timeout is the time until the cloud ends a sandbox without a deadline.
	Timeout time.Duration
	// Guest says which guest serves a sandbox: auto, own or cloud.
	Guest string
}

func defaultE2BCloud() E2BCloud {
	return E2BCloud{Domain: "e2b.app", Template: "base", Timeout: time.Hour, Guest: "auto"}
}

func e2bCloudSettings() []setting {
	return []setting{
		defineSetting(KeyE2BCloudKey, func(c *Config) *Secret { return &c.E2BCloud.Key }, setVendorKey,
			"The API key of an account at E2B. Without it provider e2b refuses every request. Set it as a variable rather than in a file.").
			orVariable("E2B_API_KEY", readVendorKey),
		defineSetting(KeyE2BCloudDomain, func(c *Config) *string { return &c.E2BCloud.Domain }, setDomainName,
			"The domain of E2B's cloud, or of another one that speaks its API. It may end in a port.").orVariable("E2B_DOMAIN", readDomainName),
		defineSetting(KeyE2BCloudAPIURL, func(c *Config) *string { return &c.E2BCloud.APIURL }, setCloudURL,
			"The address of the API.").describedBy("`https://api.` and the domain").orVariable("E2B_API_URL", readCloudURL),
		defineSetting(KeyE2BCloudSandboxURL, func(c *Config) *string { return &c.E2BCloud.SandboxURL }, setCloudURL,
			"One address at which all sandboxes are reached, with headers that name the sandbox and the port.").
			describedBy("a host for each port of a sandbox, in the domain").orVariable("E2B_SANDBOX_URL", readCloudURL),
		defineSetting(KeyE2BCloudTemplate, func(c *Config) *string { return &c.E2BCloud.Template }, setTemplateName,
			"The template of sandboxes whose requests name no image.").orVariable("E2B_TEMPLATE", readTemplateName).orVariable("E2B_TEMPLATE_ID", readTemplateName),
		defineSetting(KeyE2BCloudTimeout, func(c *Config) *time.Duration { return &c.E2BCloud.Timeout }, timeOf("3600"),
			"The time until the cloud ends a sandbox that has no deadline, unless the server renews it. An account bounds it.").
			orVariable("E2B_TIMEOUT", readSeconds),
		defineSetting(KeyE2BCloudGuest, func(c *Config) *string { return &c.E2BCloud.Guest }, oneOf("auto", "own", "cloud"),
			"Which guest serves a sandbox: own is sandpit's, brought into each sandbox; cloud is E2B's, without command log, secrets and interpreter; auto is sandpit's where that is possible."),
	}
}

// setVendorKey never shows the value.
func setVendorKey(field *Secret, v any) error {
	text, ok := textOf(v)
	if !ok || text == "" || len(text) > maxKey || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("is not an API key")
	}
	*field = Secret(text)
	return nil
}

func readVendorKey(value string) (word, bool) {
	var field Secret
	return word(value), setVendorKey(&field, word(value)) == nil
}

var domainPattern = pattern.New(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(:[0-9]{1,5})?$`)

func setDomainName(field *string, v any) error {
	text, ok := textOf(v)
	if !ok || !domainPattern().MatchString(text) {
		return fmt.Errorf("%s is not a domain; write it without a scheme, for example e2b.app", shortValue(v))
	}
	*field = text
	return nil
}

func readDomainName(value string) (word, bool) {
	return word(value), domainPattern().MatchString(value)
}

// setCloudURL reads a URL without a user, a query and a fragment.
func setCloudURL(field *string, v any) error {
	const form = "is not a URL; use for example https://api.e2b.app"
	text, ok := textOf(v)
	if !ok || hasControl(text) {
		return fmt.Errorf("%s %s", shortValue(v), form)
	}
	u, err := url.Parse(text)
	if err != nil || u.User != nil { // may contain a password, so it is not repeated
		return errors.New(form)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%s %s", shortValue(v), form)
	}
	*field = strings.TrimRight(text, "/")
	return nil
}

func readCloudURL(value string) (word, bool) {
	var field string
	return word(value), setCloudURL(&field, word(value)) == nil
}

var templateRefPattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._/:-]{0,255}$`)

func setTemplateName(field *string, v any) error {
	text, ok := textOf(v)
	if !ok || !templateRefPattern().MatchString(text) {
		return fmt.Errorf("%s is not a name of a template; use for example base", shortValue(v))
	}
	*field = text
	return nil
}

func readTemplateName(value string) (word, bool) {
	return word(value), templateRefPattern().MatchString(value)
}

func readSeconds(value string) (word, bool) {
	var field time.Duration
	return word(value), timeOf("3600")(&field, word(value)) == nil
}
