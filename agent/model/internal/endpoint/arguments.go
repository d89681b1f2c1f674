package endpoint

import (
	"encoding/json"
	"strings"
)

// ToObject returns the arguments of an earlier call as a JSON object that vendors accept. A model may have written others,
// with which each later request would be refused: they become the field invalid_arguments, and half of a surrogate pair
// becomes U+FFFD.
func ToObject(arguments string) json.RawMessage {
	var object map[string]json.RawMessage
	var value any = map[string]string{"invalid_arguments": arguments}
	if json.Unmarshal([]byte(arguments), &object) == nil && object != nil {
		if !strings.Contains(strings.ToLower(arguments), `\ud`) {
			return json.RawMessage(arguments)
		}
		value = decode(arguments)
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return json.RawMessage("{}") // what was decoded is always encoded
	}
	return encoded
}

// decode decodes a valid JSON object without a loss of digits.
func decode(text string) (object map[string]any) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	_ = d.Decode(&object) // it is valid
	return object
}
