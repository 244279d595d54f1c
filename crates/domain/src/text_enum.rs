//! Enums whose variants have one fixed name each, which is the same in the store and in the API.

macro_rules! text_enum {
    ($name:ident, $unknown:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl $name {
            /// Every variant, in the order of the type.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The name in the store and the API.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $unknown;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($unknown(word.to_owned())),
                }
            }
        }
    };
}

pub(crate) use text_enum;
