// Operators whose results are as large as the data says.
#pragma once

namespace tiny {

// Registers them: on portable devices they are made of others, elsewhere they run at once.
void install_data_sized();

}  // namespace tiny
