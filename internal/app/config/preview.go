package config

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// Preview is the [preview] section: where people see what programs in sandboxes serve.
type Preview struct {
	// Domain is the parent of the host names of ports, at the server's own address:
	// 8000-ID.localhost. It may be a URL, if viewers use another scheme or port than the server's
	// listener; or None.
	Domain string
	// Listen is a TCP address where ports are seen by a path, /p/ID/8000/, and nothing else is; or
	// None.
	Listen string
	// URL is how viewers reach Listen, if that is another way.
	URL string
	// Frames are the origins, such as https://app.example.org, whose pages may show private
	// previews in frames. A preview's own pages always may.
	Frames []string
}

// defaultPreview returns the default section.
func defaultPreview() Preview { return Preview{Domain: "localhost", Listen: None} }

func previewSettings() []setting {
	return []setting{
		defineSetting(KeyPreviewDomain, func(c *Config) *string { return &c.Preview.Domain }, setDomain,
			"The parent of the host names of ports, such as `8000-ID.localhost`; browsers resolve names below localhost to this machine. "+
				"Use a URL such as `https://preview.example.org` if viewers connect through a reverse proxy; or none."),
		defineSetting(KeyPreviewListen, func(c *Config) *string { return &c.Preview.Listen }, setListen,
			"A TCP address at which previews use paths instead, `/p/ID/8000/`, or none. All previews share one origin there."),
		defineSetting(KeyPreviewURL, func(c *Config) *string { return &c.Preview.URL }, setWebURL,
			"The URL by which viewers reach that address.").describedBy("`http://` or `https://` and the address"),
		defineSetting(KeyPreviewFrames, func(c *Config) *[]string { return &c.Preview.Frames }, setOrigins,
			"Origins such as `https://app.example.org` whose pages may show private previews in frames, besides a preview's own pages. "+
				"Browsers send a preview's cookie there only if both are below one registered domain."),
	}
}

// setOrigins takes a list of the origins of web pages.
func setOrigins(field *[]string, v any) error {
	list, ok := listOf(v)
	if !ok {
		return fmt.Errorf("%s is not a list of origins; use for example [\"https://app.example.org\"]", shortValue(v))
	}
	origins := make([]string, len(list))
	for i, text := range list {
		if err := setWebURL(&origins[i], text); err != nil || !originPattern().MatchString(strings.ToLower(origins[i])) {
			return fmt.Errorf("%s is not an origin; use for example https://app.example.org", quoteText(text))
		}
		origins[i] = strings.ToLower(origins[i])
	}
	*field = origins
	return nil
}

// originPattern is an origin as sources of a policy can name it: not one of an IPv6 address.
var originPattern = pattern.New(`^https?://[a-z0-9.-]+(:[0-9]{1,5})?$`)

// setDomain takes a host name, or the URL of one.
func setDomain(field *string, v any) error {
	text, ok := textOf(v)
	text = strings.ToLower(strings.TrimRight(text, "/"))
	if ok && text == None {
		*field = text
		return nil
	}
	name := text
	if strings.Contains(text, "://") {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
			ok = false
		} else {
			name = u.Hostname()
		}
	}
	if !ok || strings.HasPrefix(name, "*") || !dnsPattern().MatchString(name) || len(name) > maxDomain {
		return fmt.Errorf("%s is not a domain for previews; use for example preview.example.org, or none", shortValue(v))
	}
	*field = text
	return nil
}

// maxDomain is the maximum length of a domain, which leaves space for a label before it.
const maxDomain = 220

// setWebURL takes a URL without a path.
func setWebURL(field *string, v any) error {
	text, ok := textOf(v)
	u, err := url.Parse(text)
	if !ok || err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%s is not the URL of a server; use for example https://previews.example.org", shortValue(v))
	}
	*field = strings.TrimRight(text, "/")
	return nil
}
