package sandpit

// As returns an optional ability of a provider, an instance or a guest. A decorator returns
// the value it wraps from a method Unwrap() any, and As searches that value too.
func As[T any](v any) (T, bool) {
	for v != nil {
		if ability, ok := v.(T); ok {
			return ability, true
		}
		decorator, ok := v.(interface{ Unwrap() any })
		if !ok {
			break
		}
		v = decorator.Unwrap()
	}
	var none T
	return none, false
}
