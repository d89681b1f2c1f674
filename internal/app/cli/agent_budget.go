package cli

import (
	"math"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
)

// parseBudget parses an amount of tokens, such as 200k or 1.5m, or of money, such as 2usd or $2.
func parseBudget(text string) (agent.Budget, error) {
	if text == "" {
		return agent.Budget{}, nil
	}
	wrong := sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "--budget %q: want a positive amount of tokens or money", text), "for example 200k or 1.50usd")
	word := strings.ToLower(text)
	money, isMoney := strings.CutSuffix(word, "usd")
	if !isMoney {
		money, isMoney = strings.CutPrefix(word, "$")
	}
	if isMoney {
		cost, err := strconv.ParseFloat(strings.TrimSpace(money), 64)
		if err != nil || !(cost > 0) || math.IsInf(cost, 0) {
			return agent.Budget{}, wrong
		}
		return agent.Budget{Cost: cost}, nil
	}
	factor := 1.0
	for suffix, f := range map[string]float64{"k": 1e3, "m": 1e6} {
		if number, ok := strings.CutSuffix(word, suffix); ok {
			word, factor = number, f
		}
	}
	tokens, err := strconv.ParseFloat(word, 64)
	if tokens *= factor; err != nil || !(tokens >= 1) || tokens > 1e15 {
		return agent.Budget{}, wrong
	}
	return agent.Budget{Tokens: int(tokens)}, nil
}
