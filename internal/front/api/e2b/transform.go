package e2b

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// transform is a change that E2B's clients have made to requests to a host.
type transform struct {
	Transform struct {
		Headers map[string]string `json:"headers,omitempty"`
	} `json:"transform"`
}

// header is a header of requests to a host. Its value counts as a secret, because E2B's
// clients cannot mark the secret part of it.
type header struct {
	host, name, value string
}

// secretName returns the name under which the value of the n-th header is stored.
func secretName(n int) string { return fmt.Sprintf("E2B_%d", n) }

// toHeaders returns the headers that rules set, in a fixed order. If a header is set twice,
// the last one counts. Unsupported: a value refers to E2B's store of secrets. Invalid: a value
// is empty.
func (n *network) toHeaders() ([]header, error) {
	var all []header
	for _, host := range slices.Sorted(maps.Keys(n.Rules)) {
		set := map[string]header{} // by name, which has no case
		for _, rule := range n.Rules[host] {
			for name, value := range rule.Transform.Headers {
				set[strings.ToLower(name)] = header{host, name, value}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(set)) {
			all = append(all, set[name])
		}
	}
	for _, h := range all {
		switch {
		case strings.Contains(h.value, "${e2b."):
			return nil, sandpit.Errorf(sandpit.Unsupported, "network.rules: header %.100q of %.100q: sandpit does not support references to E2B's vault", h.name, h.host)
		case h.value == "":
			return nil, sandpit.Errorf(sandpit.Invalid, "network.rules: header %.100q of %.100q has no value", h.name, h.host)
		}
	}
	return all, nil
}

// policyHeaders returns the headers of a policy, with references to their values.
func policyHeaders(list []header) (headers []sandpit.NetworkHeader) {
	for n, h := range list {
		headers = append(headers, sandpit.NetworkHeader{Host: h.host, Name: h.name, Value: "${" + secretName(n) + "}"})
	}
	return headers
}

// toSecrets returns the values that policyHeaders refers to; nil without any. Errors are
// those of toHeaders.
func (n *network) toSecrets() (map[string]string, error) {
	if n == nil {
		return nil, nil //nolint:nilnil // there are no secrets
	}
	list, err := n.toHeaders()
	if err != nil || len(list) == 0 {
		return nil, err
	}
	values := make(map[string]string, len(list))
	for n, h := range list {
		values[secretName(n)] = h.value
	}
	return values, nil
}

// toRules describes headers by their hosts, with references in place of their values.
func toRules(headers []sandpit.NetworkHeader) map[string][]transform {
	rules := make(map[string][]transform)
	for _, h := range headers {
		if rules[h.Host] == nil {
			rules[h.Host] = []transform{{}}
			rules[h.Host][0].Transform.Headers = make(map[string]string)
		}
		rules[h.Host][0].Transform.Headers[h.Name] = h.Value
	}
	return rules
}
